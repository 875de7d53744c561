"""The exchange of PyTorch's gradients, whoever runs the ranks; host.py says what it asks of them.

Begin with gradient_exchange.py, a step's phases. Users see hvd_sparse.torch, which runs under
Horovod, and hvd_sparse.ddp, which runs under torch.distributed.
"""
