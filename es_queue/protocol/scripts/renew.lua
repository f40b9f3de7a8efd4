-- Keep the lease, from a thread of the master.      ARGV: token holder milliseconds
keep_lease(redis.call, argument(), argument())
return 1
