"""Where gradients lie: memory as the core takes it, and the time of whoever computes there.

Begin with place.py: the CPU, and what a device must offer. Each framework has its own devices in a
places.py, too.
"""
