"""QEMU guests with real rdma_rxe queue pairs: the RDMA half of the lab.

A fabric is realised as one guest per host. `prepare` brings kernel and initramfs, `plan` says what each guest is (a
value), `supervisor` owns the guests of one lab, `lab` is the face that everything else uses.

This file stays empty of imports: the guest itself loads this package when it starts, where every import costs.
"""
