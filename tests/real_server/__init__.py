"""Tests on a real vLLM server, which nobody here wrote: see docs/real-servers.md."""
