"""What a site may be told."""

from typing import Annotated

from msgspec import Meta, Struct

from unisono.model.time import MILLISECOND, Micros


class UecConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds and pace of one site; all sites have the same."""

    coalition_size: Annotated[int, Meta(ge=1)] = 3
    """Sequencers that are sought together. Price: without `sync`, what their counters are apart is rolled back."""
    sync: bool = True
    """A sequencer's counter follows those it hears of. Not in the thesis' description; costs nothing on the wire."""
    fanout: Annotated[int, Meta(ge=1)] = 3
    """To how many sites what is new is passed on. Price: as many copies per site."""
    hold_us: Micros = Micros(0)
    """How long what arrives is kept before it is applied, in the hope for what precedes it. Price: so much latency."""
    hold_max: Annotated[int, Meta(ge=0)] = 100
    """So many are kept; then the first of them is applied. 0: none."""
    digest_us: Micros = Micros(500 * MILLISECOND)
    """How often a site says to another one what it has."""
    answer_max: Annotated[int, Meta(ge=1)] = 200
    """Operations in the answer to a digest; the rest is asked for again."""
    retry_us: Micros = Micros(1000 * MILLISECOND)
    """An operation that nobody has numbered by then is given to another sequencer."""
    silent_max: Annotated[int, Meta(ge=1)] = 3
    """A sequencer that has let so many operations of ours wait in a row is left out of the next coalition."""
    discovery_us: Micros = Micros(200 * MILLISECOND)
    """How long a coalition is looked for before one is made."""
    cut_us: Micros = Micros(0)
    """How often what is known becomes stable by a cut; 0: never, then nobody knows when all agree."""
