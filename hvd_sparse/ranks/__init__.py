"""The ranks: who they are, how they are connected, what they agree on, and when they end.

Begin with world.py, the ranks as Horovod knows them. connection.py brings those of a new exchange
together over what transport.py chooses; lifecycle.py ends exchanges before Horovod goes away.
"""
