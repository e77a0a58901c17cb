"""Server of packs.

It speaks KServe's open inference protocol v2 over HTTP and gRPC, joins requests by expected times, and hands over to new
packs under load.
"""
