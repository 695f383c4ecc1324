"""Modal, played on this host: its control plane and command router over gRPC, sandboxes as real processes."""
