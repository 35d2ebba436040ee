"""Distances between regions, for a mesh whose members are all on one machine: `unisono up` rehearses with them."""

from unisono.model.region import LatencyTable

Endpoint = tuple[str, int]


class MeshDistances:
    """Who is in which region, and how long a datagram takes from there to here."""

    def __init__(self, table: LatencyTable) -> None:
        self._table = table
        self._regions: dict[Endpoint, str] = {}
        self._behind: dict[Endpoint, Endpoint] = {}

    def place(self, endpoint: Endpoint, region: str) -> None:
        self._regions[endpoint] = region

    def stands_for(self, proxy: Endpoint, member: Endpoint) -> None:
        """Connections to the member go through this proxy; datagrams do not."""
        self._behind[proxy] = member

    def behind(self, endpoint: Endpoint) -> Endpoint:
        return self._behind.get(endpoint, endpoint)

    def between_s(self, here: str, there: Endpoint) -> float:
        region = self._regions.get(there, here)
        return 0.0 if region == here else self._table.between(here, region) / 1e6


_of_deployments: dict[str, MeshDistances] = {}


def emulate_distances(deployment: str, distances: MeshDistances | None) -> None:
    """For all members of the deployment that this process opens from now on; None ends it."""
    if distances is None:
        _of_deployments.pop(deployment, None)
    else:
        _of_deployments[deployment] = distances


def distances_of(deployment: str) -> MeshDistances | None:
    return _of_deployments.get(deployment)
