"""The judges, one promise each: pure functions over a trace. `table` lists them."""
