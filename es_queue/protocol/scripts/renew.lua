-- Keep the lease, show progress, tell what is stored. Progress is not worth failing for when memory is short:
-- returns {publication, whether it is whole, why the server refused to write; empty when it did not}.
-- KEYS: epoch progress task master refused
-- ARGV: token holder milliseconds prefix {progress} {refused}
local holder, milliseconds, prefix = argument(), argument(), argument()
local progress, refused = list(), list()
local trouble = ''
local function attempt(...)
  local said = redis.pcall(...)
  if type(said) == 'table' and said.err then trouble = said.err end
end
local stored = redis.call('HGET', KEYS[2], 'publication')
-- A server out of memory refuses a script's first write alone, so the first is one that changes nothing.
if stored then attempt('HSET', KEYS[2], 'publication', stored) end
if redis.call('GET', KEYS[4]) == holder then
  redis.call('PEXPIRE', KEYS[4], milliseconds)
else
  attempt('SET', KEYS[4], holder, 'PX', milliseconds)
end
if not stored then return { false, 0, trouble } end
if #progress > 0 then attempt('HSET', KEYS[2], unpack(progress)) end
if #refused > 0 then attempt('HSET', KEYS[5], unpack(refused)) end
local found = redis.call('EXISTS', KEYS[3], prefix .. 'results:' .. stored .. ':0', prefix .. 'parameters:' .. stored)
return { stored, found == 3 and 1 or 0, trouble }
