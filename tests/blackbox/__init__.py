"""The product as its users meet it: its own process, HTTP and exit codes, in front of fake servers."""
