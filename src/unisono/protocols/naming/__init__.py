"""Names of topics: which node may create the topic of a name, and what number it has, whatever order is made beneath.

`TopicNames` stands around the machine that orders at a node, and gives each name to one topic only; `messages` is what
is said for that. Ours; no paper asks where topics come from.
"""
