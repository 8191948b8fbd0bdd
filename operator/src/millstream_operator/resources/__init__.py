"""Pure builders: custom resource in, Kubernetes objects out."""
