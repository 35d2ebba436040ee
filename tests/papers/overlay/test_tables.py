"""What a broker's tables say after things have come and gone."""

import random

from tests.papers.overlay.net import span
from unisono.protocols.overlay.tables import Tables

RULES = ("TABLE",)


def test_counts_of_overlaps_are_those_of_what_is_there() -> None:
    dice = random.Random(3)
    tables = Tables()
    for step in range(400):
        low = dice.randrange(8)
        match dice.randrange(4):
            case 0:
                tables.add_ad(f"a{step}", dice.choice("pq"), f"a{step}", span(low, low + 2))
            case 1:
                tables.add_sub(f"s{step}", dice.choice("hk"), dice.choice("cd"), span(low, low + 2))
            case 2 if tables.ads:
                tables.remove_ad(dice.choice(list(tables.ads)))
            case 3 if tables.subs:
                tables.remove_sub(dice.choice(list(tables.subs)))
            case _:
                pass
        for ads in "pq":
            met = [sub for sub in tables.subs.values() if sub.ads & tables.from_hop(ads)]
            assert met == [sub for sub in tables.subs.values() if sub.met.any_from(ads)]
            assert [tables.hop_meets(hop, ads) for hop in "hk"] == [any(s.hop == hop for s in met) for hop in "hk"]
            assert [tables.client_meets(c, ads) for c in "cd"] == [any(s.client == c for s in met) for c in "cd"]
