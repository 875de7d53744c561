"""The places of gradients, the CPU and devices: their memory, as passed to the core, and clocks.

Begin with place.py: the CPU, and the interface of a device. Each framework implements its own
devices in another places.py.
"""
