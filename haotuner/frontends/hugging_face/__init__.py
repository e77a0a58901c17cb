"""Reader of the ``config.json`` of a Hugging Face model, which becomes the list of ops that a server of it calls.

Linears are joined and cut as vLLM does it: one product for queries, keys and values, one for gate and up.
"""
