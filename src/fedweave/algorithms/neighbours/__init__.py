"""What a client believes to be its nodes' neighbours at other clients (FedSage+)."""
