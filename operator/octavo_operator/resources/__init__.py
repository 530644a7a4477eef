"""Pure builders: from a plan to the manifests of the child objects, exactly as they are applied."""
