"""The client side: connecting and sessions; publishing; subscription. It never imports the node side."""
