"""Elastic jobs on a fixed cluster, as in section 5 of the Cornucopia paper: the core's pool and rules beside Tiresias,
SRTF with an oracle, FIFO and an ElasticFlow without deadlines, with and without the costs of resizes."""
