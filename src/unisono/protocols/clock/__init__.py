"""One global order by clocks that may be wrong: stampers give events keys made of their clocks, subscribers notify in
increasing key order, always. Watermarks, lanes and leases make it timely; order needs none of them
(docs/protocols/clock.md; thesis 002, sections 1.1 and 3.7, asks for it and does not give it).
"""
