"""The four tutorials, as pages that are played (`python -m tests.runtime.hour tutorials`)."""
# ruff: noqa: E501  (prose stands as it will on the page)

from tests.runtime.hour import ROOT, WELL, Chapter, Command, Page

TUTORIALS_IN = ROOT / "docs" / "tutorials"
PLAYED = """
Played by `python -m tests.runtime.hour`, which typed every line below and kept what was printed; the campaign plays it
again. Lines that end in `&` go on running: give each a terminal of its own.
"""
EU, US = "eu-central-1-1", "us-east-1-1"


def node(name: str) -> Command:
    return Command(f"unisono node deployment.toml {name}", True, "listens on port")


def sub(port: int, count: int, options: str = "--journal journals") -> Command:
    line = f"unisono sub unisono://127.0.0.1:{port} trades quotes --count {count} {options}"
    return Command(line, True, "subscribed", ends=True)


def pub(port: int, topic: str, payload: str) -> Command:
    return Command(f"unisono pub unisono://127.0.0.1:{port} {topic} '{payload}'")


TWO_REGIONS = Chapter(
    "Two regions",
    "One file describes the deployment. Its distances come from a table of public clouds; nothing else has to be running.",
    (
        Command("unisono init --region eu-central-1 --region us-east-1"),
        node(EU),
        node(US),
        Command("unisono status deployment.toml", until=WELL),
    ),
)

AGREE = Page(
    TUTORIALS_IN / "agree.md",
    "# Two subscribers agree\n" + PLAYED,
    (
        TWO_REGIONS,
        Chapter(
            "Publish on two topics, from two regions",
            "A subscriber in each region. Publishers do not wait for each other.",
            (
                sub(7474, 4),
                sub(7476, 4),
                pub(7474, "trades", '{"px": 101}'),
                pub(7476, "quotes", '{"bid": 100}'),
                pub(7476, "trades", '{"px": 102}'),
                pub(7474, "quotes", '{"bid": 101}'),
            ),
            after="The same lines in the same order. That no other run can differ is what the protocol is for; that this one did\n"
            "not is what a journal shows.",
        ),
        Chapter(
            "Let a judge say so",
            "`--journal` wrote down what each was told. `audit` compares; it exits with 0 if the promise held.",
            (Command("unisono audit journals"),),
            after="Next: [break it and read the verdict](break.md).",
        ),
    ),
)

BREAK = Page(
    TUTORIALS_IN / "break.md",
    "# Break it and read the verdict\n" + PLAYED,
    (
        Chapter(
            "A weaker order, judged by the stronger promise",
            "The smallest protocol orders each publisher's own events and no others. It keeps what it promises:",
            (Command("unisono simulate fifo/reorder --seeds 0 --journal runs"),),
        ),
        Chapter(
            "The verdict",
            "Ask whether any two subscribers agree on any two events, which nobody promised. `audit` exits with 1, and says for\n"
            "each judge one case: who was told what before what, and by which rows. `story` shows one of the two events.",
            (
                Command("unisono audit runs --promise pairwise", code=1),
                Command("unisono story runs c0:6"),
            ),
            after="A run is decided by its scenario and its seed: you see the same numbers. A log of your own needs three columns,\n"
            "`subscriber`, `event` and `position`, to be judged like this ([journals](../reference/journal.md)).",
        ),
        TWO_REGIONS,
        Chapter(
            "Kill a node",
            "`kill -9` stands before the name of a node, whose process is meant. `status` names it and exits with 1.",
            (
                sub(7474, 2),
                sub(7474, 2),
                pub(7474, "trades", '{"px": 101}'),
                Command(f"kill -9 {US}"),
                Command("unisono status deployment.toml", code=1),
                node(US),
                Command("unisono status deployment.toml", until=WELL),
                pub(7476, "quotes", '{"bid": 100}'),
            ),
        ),
        Chapter(
            "And the order?",
            "Nothing was reordered, nothing is missing.",
            (Command("unisono audit journals"),),
            after="What is said when it cannot be repaired, fault by fault: [what happens when …](../reference/what-happens-when.md).",
        ),
    ),
)

ADOPTING = """version = 1
name = "shop"
nodes = [{ name = "hub", listen = "127.0.0.1:7474", data = "data" }]
broker = { kind = "nats", servers = ["nats://127.0.0.1:4222"] }
topics = [
  { name = "trades", foreign = "adopt" },
  { name = "quotes", foreign = "adopt" },
]
"""
OLD = """import asyncio

import nats


async def main() -> None:
    old = await nats.connect("nats://127.0.0.1:4222")
    for number in range(3):
        await old.publish("trades", b"trade %d" % number)
        await old.publish("quotes", b"quote %d" % number)
    await old.close()


asyncio.run(main())
"""
ADOPT = Page(
    TUTORIALS_IN / "adopt.md",
    "# Adopt it on the NATS you already run\n\nSubscribers first, then publishers, one by one: nothing has to change on one day.\n"
    + PLAYED,
    (
        Chapter(
            "A node beside the server",
            "The server is the one that you run. One file says where it is, and which topics' events of *strangers*\n"
            "(publishers that do not use unisono) get a place in the order.",
            (
                Command("nats-server -p 4222", True, "Server is ready"),
                Command("unisono node deployment.toml hub", True, "listens on port"),
            ),
            (("deployment.toml", ADOPTING),),
            "Plain consumers of `trades` hear what they heard before, once. A node with the home of a topic hears what strangers\n"
            "publish there and publishes it again, numbered, on a subject of its own\n"
            "([what travels where](../reference/brokers.md#what-travels-where-on-nats)).",
        ),
        Chapter(
            "Subscribers that agree, publishers as before",
            "The publisher is what it was, untouched:",
            (
                sub(7474, 7),
                sub(7474, 7),
                Command("python old.py"),
                pub(7474, "trades", "of ours"),
            ),
            (("old.py", OLD),),
            "The last one has moved: it used `unisono pub`. The order of one stranger on one topic is kept; between two topics an\n"
            'adopted event stands where its node heard it, which is all that anybody knows of it. With `foreign = "tag"`, the\n'
            "default, such events are told at once and marked `late`, outside the order.",
        ),
        Chapter("Judged", "Adopted events are judged like any others.", (Command("unisono audit journals"),)),
        Chapter(
            "Publishers, one by one",
            "A publisher that uses `session.publish` gets what a stranger does not: an outcome (`Accepted`, `Refused`,\n"
            "`Unknown`), an identity by which repetitions are known, and its own order over topics. Move the one whose events\n"
            'matter most first; the others stay adopted. When none is left, `foreign = "refuse"` drops what strangers publish,\n'
            "for subscribers of ours. Meanwhile watch:",
            (Command("unisono status deployment.toml", until=WELL), Command("unisono topics deployment.toml")),
            after="Servers that ask for `.creds`, nkeys or certificates: [logging in](../reference/brokers.md#logging-in). Deny\n"
            "`_unisono.*.ctl.>` to clients: [permissions](../reference/brokers.md#permissions).",
        ),
    ),
)

ARCHIVED = """version = 1
name = "shop"
nodes = [{ name = "hub", listen = "127.0.0.1:7474", data = "data", roles = ["sequencer", "broker", "archive"] }]
broker = { kind = "embedded" }
archive = { seal_s = 1.0 }
"""
REPLAY = """from unisono.spark.session import local_session

spark = local_session("replay")  # or the session that you have
events = spark.read.format("unisono").load("data/hub/archive").orderBy("seq")
for row in events.selectExpr("seq", "topic", "number", "string(payload)").collect():
    print(*row)
"""
SPARK = Page(
    TUTORIALS_IN / "spark.md",
    "# Replay into Spark\n\n`pip install 'unisono[spark]'` and Java 17.\n" + PLAYED,
    (
        Chapter(
            "An archive",
            "A node with the role `archive` is a subscriber like any other, and keeps what it is told.",
            (Command("unisono node deployment.toml hub", True, "listens on port"),),
            (("deployment.toml", ARCHIVED),),
        ),
        Chapter(
            "Publish, and listen",
            "What a subscriber is told now, Spark is told later.",
            (
                sub(7474, 4),
                pub(7474, "trades", '{"px": 101}'),
                pub(7474, "quotes", '{"bid": 100}'),
                pub(7474, "trades", '{"px": 102}'),
                pub(7474, "quotes", '{"bid": 101}'),
            ),
        ),
        Chapter(
            "Read it with Spark",
            "`seq` is the archive's own order, and the offset of a stream: a range gives the same rows for ever.",
            (Command("python replay.py", until='bid": 101'),),
            (("replay.py", REPLAY),),
            '`spark.readStream.format("unisono")` is the same without an end; a sink publishes once what a job found. Both, with\n'
            "all options: [Spark](../reference/spark.md).",
        ),
        Chapter(
            "Can it be trusted?",
            "Spark's rows stand in the order that the subscriber was told. What that one was told is judged, and every segment of the\n"
            "archive is held against its checksum.",
            (Command("unisono audit journals"), Command("unisono doctor --archive data/hub/archive")),
        ),
    ),
)
TUTORIALS = (AGREE, BREAK, ADOPT, SPARK)
