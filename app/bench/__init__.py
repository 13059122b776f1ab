"""`carousel bench`: what a server does under the loads that papers measure with."""
