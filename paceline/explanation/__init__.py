"""How a finding came about: its rule, the numbers that decided, who was compared, and what it rests on.

From an archive the finding is made again by the engines and the rule's own figures are noted on the way; from recorded
findings alone, or from the topics, it is put together from what the finding carries and the records it cites.
"""
