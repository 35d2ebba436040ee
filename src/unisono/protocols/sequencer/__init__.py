"""Total notification order over any topic broker: topic managers on a tree of sequencer nodes.

* Node: `Sessions(TopicManager(me, parent, children, hosted, below, config), me, peers, PeerMessage, BrokerMessage)`,
  with parent and children as peers. Its driver also gives it Host, Migrate and Forget (`node`), and refuses a client's
  message whose `messages.sender` is not the connection it came from.
* Client: `OrderingClient(address, homes, config)`, with the interface of the broker it stands on (`unisono.machine`).
  `homes` may name any node for a topic: messages find the home through the tree, and Moved tells where it is.
* `config`: publication modes, encodings, deadlines and bounds. `ranking`: when and where homes move.

Papers: total notification order by multistage sequencing (sections 3 and 4), corrected where its text fails.
"""
