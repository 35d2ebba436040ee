"""What order and reliability are worth to the detection: precision and recall against the planted scanners.

    python examples/portscan/evaluate.py [SEEDS]

The rule is that of the streaming job (`unisono.spark.portscan.PacketWatch`), fed with the packets as each transport
would deliver them. `one site alone` is what each institution finds without the others, at a threshold its honest
clients do not reach.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from traffic import MS, Traffic, degrade, generate, prepare, pseudonym

from unisono.spark.portscan import ObservedPacket, PacketWatch, Rule

KEY = b"shared by the sites"
TRANSPORTS = {
    "fifo, reliable": (0.0, 0),
    "fifo, 5 % lost": (0.05, 0),
    "reliable, out of order": (0.0, 50 * MS),
    "5 % lost, out of order": (0.05, 50 * MS),
}


def detect(packets: list[ObservedPacket], rule: Rule) -> set[str]:
    watch = PacketWatch(rule)
    for packet in packets:
        watch.see(packet)
    return set(watch.evidence.told)


def score(found: set[str], planted: set[str]) -> tuple[float, float]:
    """Precision and recall."""
    right = len(found & planted)
    return (right / len(found) if found else 1.0), (right / len(planted) if planted else 1.0)


def evaluate(traffic: Traffic, rule: Rule = Rule()) -> dict[str, tuple[float, float]]:
    packets, scanners = generate(traffic)
    planted = {pseudonym(KEY, name) for name in scanners}
    told = prepare(packets, KEY)
    scores = {
        name: score(detect(degrade(told, loss, jitter, traffic.seed), rule), planted)
        for name, (loss, jitter) in TRANSPORTS.items()
    }
    alone: set[str] = set()
    local = Rule(rule.targets_min, 1, rule.timeout_us, rule.window_us)
    for site in sorted({packet.site for packet in told}):
        alone |= detect([packet for packet in told if packet.site == site], local)
    return {**scores, "one site alone": score(alone, planted)}


def main(seeds: int) -> None:
    total: dict[str, list[tuple[float, float]]] = {}
    for seed in range(seeds):
        for name, values in evaluate(Traffic(seed=seed)).items():
            total.setdefault(name, []).append(values)
    print(f"{'transport':26}precision  recall   ({seeds} seeds)")
    for name, values in total.items():
        precision, recall = (sum(v[i] for v in values) / len(values) for i in (0, 1))
        print(f"{name:26}{precision:9.3f}{recall:8.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
