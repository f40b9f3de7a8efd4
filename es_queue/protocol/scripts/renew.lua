-- Keep the lease, from a thread of the master's own.
-- KEYS: epoch master      ARGV: token holder milliseconds
keep_lease(redis.call, KEYS[2], argument(), argument())
return 1
