"""Tables of Delta Lake, through delta-rs: neither Delta's nor Iceberg's Spark connector loads on PySpark 4.3.

`source` streams and reads a table, `sink` appends to it with one commit per batch, `jobs` compact it and remove what is
old. The extra `lakehouse` brings deltalake.
"""
