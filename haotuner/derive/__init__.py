"""Rewriting by rules.

Other expressions of what a model computes, by rules that name no operator, chosen by price.
"""
