"""What several tests share: simulated data, clusters, servers, browsers."""
