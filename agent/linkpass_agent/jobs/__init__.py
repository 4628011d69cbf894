"""Running RDMA jobs: sessions with their shims, spare queue pairs, letters to peers' agents, orders to migrate."""
