-- Keep the lease, show progress, tell what is stored. Progress is not worth failing for when memory is short.
-- KEYS: epoch progress task master refused
-- ARGV: token holder milliseconds prefix {progress} {refused}
local holder, milliseconds, prefix = argument(), argument(), argument()
local progress, refused = list(), list()
if redis.call('GET', KEYS[4]) == holder then
  redis.call('PEXPIRE', KEYS[4], milliseconds)
else
  redis.pcall('SET', KEYS[4], holder, 'PX', milliseconds)
end
local stored = redis.call('HGET', KEYS[2], 'publication')
if not stored then return { false, 0 } end
if #progress > 0 then redis.pcall('HSET', KEYS[2], unpack(progress)) end
if #refused > 0 then redis.pcall('HSET', KEYS[5], unpack(refused)) end
local whole = redis.call('EXISTS', KEYS[3], prefix .. 'results:' .. stored, prefix .. 'parameters:' .. stored)
return { stored, whole == 3 and 1 or 0 }
