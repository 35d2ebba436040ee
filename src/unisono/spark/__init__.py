"""Driver 3: Spark. A source that replays one order, a sink that publishes once, audits and plans at any size.

Functions take and give data frames and never touch `sparkContext`, so that they run in jobs, notebooks, declarative
pipelines and over Spark Connect alike.
"""
