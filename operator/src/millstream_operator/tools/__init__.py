"""Programs beside the operator: generators of CRDs and documents, the chart's hooks."""
