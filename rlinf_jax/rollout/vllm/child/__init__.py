"""The process that generates: the only importer of vllm and torch.

It is run as a program, maybe by another Python than ours, with this folder as
the first on its path: it imports the standard library, numpy, torch, vllm and
the files beside it, and nothing else of ours.
"""
