"""A gateway: serves the clients of a cluster, and holds no data.

`BrokerPool` has the connections to brokers, `BrokerRoutes` knows which of them leads,
`ClusterWatch` keeps an eye on the brokers and knows the users, `GatewayService` passes requests on.
"""
