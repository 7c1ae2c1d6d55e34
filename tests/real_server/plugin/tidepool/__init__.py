"""Stands in for third-party code inside a real vLLM worker: a page pool with bugs (pages), and what orders them."""
