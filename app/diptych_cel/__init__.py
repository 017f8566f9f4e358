"""CEL expressions of policies: parsed, bounded in cost, and evaluated.

The only package that pods and the operator share: the operator validates the expressions that pods
evaluate.
"""
