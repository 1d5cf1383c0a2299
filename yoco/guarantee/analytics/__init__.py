"""Reliability analytics of a contract year: what failures cost, what migration saved, what to expect.

The formulas are pure and live in `yoco.waste`; these modules feed them with sums that the database makes, so that a
page costs the same few queries whatever the number of incidents.
"""
