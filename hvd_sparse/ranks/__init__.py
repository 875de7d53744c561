"""The ranks: their numbers, the connections between them, their agreement, and their end.

Begin with world.py, who the ranks are. connection.py connects those of a new exchange
over the transport that transport.py chooses; lifecycle.py ends exchanges before Horovod does.
"""
