"""Sizes of timestamps: the paper's point, one flat object per point, and what delta encoding saves."""

from unisono.experiments.sequencer.timestamp_size import TimestampSizeOptions, as_json, run


def test_the_papers_point_has_the_papers_size() -> None:
    (row,) = run(TimestampSizeOptions(shape=0.901, events=0))
    assert 17 <= row.ours["mean_size"] <= 18
    assert row.paper == {"mean_size": 17}


def test_one_shape_is_one_flat_object() -> None:
    printed = as_json(run(TimestampSizeOptions(clients=100, topics=20, per_client=3, shape=0.349, events=0, seed=7)))
    assert printed["shape"] == 0.349
    assert 1 <= printed["mean_size"] <= 20
    assert 0 <= printed["std_size"] <= 20


def test_a_timestamp_names_its_group_or_only_what_changed() -> None:
    options = TimestampSizeOptions(clients=200, topics=30, per_client=4, shape=0.5, events=500)
    (row,) = run(options)
    assert row.ours["max_size"] >= row.ours["full_entries"] > row.ours["mean_size"], "popular topics have large groups"
    assert row.ours["full_entries"] > 2 * row.ours["delta_entries"]
    assert row.ours["full_bytes"] > row.ours["delta_bytes"] > row.ours["delta_entries"]


def test_causal_order_needs_more_entries() -> None:
    total, causal = (
        run(
            TimestampSizeOptions(clients=200, topics=30, per_client=4, shape=0.5, shared_subscriptions_min=n, events=0)
        )[0]
        for n in (2, 1)
    )
    assert causal.ours["mean_size"] > total.ours["mean_size"]


def test_several_shapes_are_a_list() -> None:
    rows = run(TimestampSizeOptions(clients=20, topics=10, per_client=2, events=10))
    assert [point["shape"] for point in as_json(rows)["shapes"]] == [0.2, 0.349, 0.5, 0.7, 0.901, 1.1]
