"""The four tutorials, as pages that are played (`python -m tests.runtime.hour tutorials`)."""
# ruff: noqa: E501  (prose stands as it will on the page)

from tests.runtime.hour import ROOT, WELL, Chapter, Command, Page

TUTORIALS_IN = ROOT / "docs" / "tutorials"
PLAYED = """
Every command on this page was typed by a program, `python -m tests.runtime.hour`, and what you see is what it printed; the campaign
plays the page again. A line that ends in `&` keeps running: type it, without the `&`, in a terminal of its own.
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
    "One file describes the deployment: two regions, one node in each, and an embedded broker, so nothing else has to be running.\n"
    "The distance between the regions comes from a table of public clouds.",
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
            "Start a subscriber in each region, then publish on both topics from both regions.",
            (
                sub(7474, 4),
                sub(7476, 4),
                pub(7474, "trades", '{"px": 101}'),
                pub(7476, "quotes", '{"bid": 100}'),
                pub(7476, "trades", '{"px": 102}'),
                pub(7474, "quotes", '{"bid": 101}'),
            ),
            after="Both print the same lines in the same order. The protocol sees to it in every run; that it held in this run can be checked.",
        ),
        Chapter(
            "Let a judge say so",
            "`--journal` wrote down what each subscriber was given. `audit` compares the journals, and exits with 0 if the promise held.",
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
            "The smallest protocol, `fifo`, orders only the events of one publisher against each other. This plays it in a simulation, over a\n"
            "network that reorders. It keeps what it promises:",
            (Command("unisono simulate fifo/reorder --seeds 0 --journal runs"),),
        ),
        Chapter(
            "The verdict",
            "Now ask for more than was promised: do all subscribers agree on all pairs of events? They do not. `audit` exits with 1, and each\n"
            "judge that fails shows one case: which two events, which two subscribers, and where it stands in the journal. `story` shows the\n"
            "life of one of the two events.",
            (
                Command("unisono audit runs --promise pairwise", code=1),
                Command("unisono story runs c0:6"),
            ),
            after="Scenario and seed decide everything, so you see the same numbers. You can check a log of your own in the same way: it needs three\n"
            "columns, `subscriber`, `event` and `position` ([journals](../reference/journal.md)).",
        ),
        TWO_REGIONS,
        Chapter(
            "Kill a node",
            "`kill -9 NODE` means the process of that node. `status` names it and exits with 1. Started again, the node reads its log and goes on.",
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
            "Nothing was reordered, and nothing is missing:",
            (Command("unisono audit journals"),),
            after="Which fault has which effect, and what you see of it: [what happens when …](../reference/what-happens-when.md).",
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
    "# Adopt it on the NATS you already run\n\nYou can move to unisono step by step: first the subscribers, then the publishers, one at a time.\n"
    + PLAYED,
    (
        Chapter(
            "A node beside the server",
            "`nats-server` here is the one that you already run. One file says where it is, and on which topics the events of publishers without\n"
            "unisono (*strangers*) get a place in the order.",
            (
                Command("nats-server -p 4222", True, "Server is ready"),
                Command("unisono node deployment.toml hub", True, "listens on port"),
            ),
            (("deployment.toml", ADOPTING),),
            "Plain consumers of `trades` notice nothing: they get every event once, as before. The node where a topic lives hears what strangers\n"
            "publish there, gives it a number, and publishes it again on a subject of its own for unisono's subscribers\n"
            "([what travels where](../reference/brokers.md#what-travels-where-on-nats)).",
        ),
        Chapter(
            "Subscribers that agree, publishers as before",
            "The publisher is unchanged. It does not know of unisono:",
            (
                sub(7474, 7),
                sub(7474, 7),
                Command("python old.py"),
                pub(7474, "trades", "of ours"),
            ),
            (("old.py", OLD),),
            "The last event comes from a publisher that has moved: `unisono pub`. The events of one stranger on one topic keep their order.\n"
            "Between two topics, an adopted event stands where its node heard it; nothing more is known of it. With the default,\n"
            '`foreign = "tag"`, events of strangers are delivered at once, marked `late`, outside the order.',
        ),
        Chapter("Judged", "Adopted events are checked like all others.", (Command("unisono audit journals"),)),
        Chapter(
            "Publishers, one by one",
            "A publisher that uses `session.publish` gains three things: it learns the outcome (`Accepted`, `Refused` or `Unknown`), repetitions\n"
            "are recognized, and its events keep their order across topics. Move the most important publisher first; the others stay adopted.\n"
            'When the last one has moved, `foreign = "refuse"` makes subscribers drop what strangers publish. Meanwhile, watch:',
            (Command("unisono status deployment.toml", until=WELL), Command("unisono topics deployment.toml")),
            after="If your servers ask for `.creds`, nkeys or certificates: [logging in](../reference/brokers.md#logging-in). In production, allow only\n"
            "nodes to publish on `_unisono.*.ctl.>`: [permissions](../reference/brokers.md#permissions).",
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
            "A node with the role `archive` subscribes to all topics and keeps what it receives, in order.",
            (Command("unisono node deployment.toml hub", True, "listens on port"),),
            (("deployment.toml", ARCHIVED),),
        ),
        Chapter(
            "Publish, and listen",
            "A live subscriber prints the events. Spark will read the same ones later.",
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
            "`seq` is the row's place in the archive, and the offset when you read it as a stream: a range gives the same rows every time.",
            (Command("python replay.py", until='bid": 101'),),
            (("replay.py", REPLAY),),
            '`spark.readStream.format("unisono")` reads the same as a stream without an end; a sink publishes the results of a job, each\n'
            "once. All options: [Spark](../reference/spark.md).",
        ),
        Chapter(
            "Can it be trusted?",
            "Spark's rows are in the order that the live subscriber saw. `audit` checks what that subscriber saw; `doctor` checks every segment of\n"
            "the archive against its checksum.",
            (Command("unisono audit journals"), Command("unisono doctor --archive data/hub/archive")),
        ),
    ),
)
TUTORIALS = (AGREE, BREAK, ADOPT, SPARK)
