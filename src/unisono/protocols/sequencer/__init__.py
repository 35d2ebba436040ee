"""Total notification order over any topic broker: topic managers on a tree of sequencer nodes.

Nodes: `Sessions(TopicManager(me, parent, children, hosted, below, config), me, peers, PeerMessage, BrokerMessage)`
with parent and children as peers; inputs besides peer and client messages are Host, Migrate and Forget.
Clients: `OrderingClient(address, homes, config)`, with the interface of the broker it stands on (see
`unisono.machine`). What travels is in `messages`; publication modes, encodings and deadlines are in `config`.
Papers: total notification order by multistage sequencing (sections 3 and 4), corrected where its text fails.
"""
