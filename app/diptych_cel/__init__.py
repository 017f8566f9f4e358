"""CEL expressions of policies: checked with the place of a mistake, bounded in cost, evaluated.

The one package that pods and the operator share: the operator checks with it what pods evaluate. It
knows neither of them.
"""
