"""`unisono replica` as a person runs it."""

import asyncio
import json
import sqlite3
import sys
from pathlib import Path

import unisono
from tests.replicas.test_replica import QUICK, STOCK, kept, plays
from unisono.model.deployment import dump_deployment
from unisono.replicas import Replica


async def run(*arguments: str) -> tuple[int, str, str]:
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "unisono", "replica", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await command.communicate()
    assert command.returncode is not None
    return command.returncode, out.decode(), err.decode()


@plays
async def test_a_file_is_served_checked_and_compared(tmp_path: Path) -> None:
    async with kept(tmp_path) as deployment, unisono.connect(deployment) as session:
        file = tmp_path / "deployment.toml"
        file.write_text(dump_deployment(deployment))
        async with Replica(session, tmp_path / "here.db", ["a"], config=QUICK) as here:
            await (await here.transaction(STOCK)).stable()
            serving = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "unisono", "replica", "serve", str(file), str(tmp_path / "there.db")),
                *("--topic", "a", "--json"),
                stdout=asyncio.subprocess.PIPE,
            )
            assert serving.stdout is not None
            while json.loads(await serving.stdout.readline())["operations"] < 1:
                pass
            code, out, _ = await run("compare", str(tmp_path / "here.db"), str(tmp_path / "there.db"), "--json")
            assert (code, json.loads(out)["same"]) == (0, True)
            serving.terminate()
            assert await serving.wait() == 0
        with sqlite3.connect(tmp_path / "there.db") as hand:
            hand.execute("UPDATE stock SET n = 6")
        code, out, _ = await run("compare", str(tmp_path / "here.db"), str(tmp_path / "there.db"))
        assert code == 1
        assert "stock: [1, 1, 5] in the first, [1, 1, 6] in the second" in out
        code, out, _ = await run("check", str(tmp_path / "there.db"), "--json")
        assert (code, json.loads(out)["operations"], json.loads(out)["problems"]) == (0, 1, [])


@plays
async def test_wrong_files_are_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("no database")
    for arguments, reason in [
        (("check", str(tmp_path / "text.db")), "no replica's file"),
        (("check", str(tmp_path / "none.db")), "is not there"),
        (("compare", str(tmp_path / "none.db"), str(tmp_path / "text.db")), "is not there"),
    ]:
        code, out, err = await run(*arguments)
        assert (code, out) == (2, "")
        assert reason in err
        assert err.count("\n") == 1
