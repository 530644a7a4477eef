"""The ModelDeployment object: its fields, its status, its labels and the CRD generated from them."""
