"""The front for the network: HTTP, metrics, logs, traces."""
