-- Close the open publications, write the last state, let every key of the run expire.
-- KEYS: epoch progress todo workers master checkpoint refused
-- ARGV: token prefix seconds checkpoint {progress} {refused} {lasting}
local prefix, seconds, checkpoint = argument(), argument(), argument()
local progress, refused, lasting = list(), list(), list()
if checkpoint ~= '' then redis.call('SET', KEYS[6], checkpoint) end
redis.call('HSET', KEYS[2], unpack(progress))
if #refused > 0 then redis.call('HSET', KEYS[7], unpack(refused)) end
local stored = redis.call('HGET', KEYS[2], 'publication')
if stored then close(prefix, stored) end
close_older(KEYS[2], prefix, {})
redis.call('HDEL', KEYS[2], 'publication', 'open', 'give_way')
for _, worker in ipairs(members(KEYS[4])) do redis.call('UNLINK', prefix .. 'claims:' .. worker) end
redis.call('UNLINK', KEYS[3], KEYS[4], KEYS[5], prefix .. 'bell')
for _, key in ipairs(lasting) do redis.call('EXPIRE', key, seconds) end
return 1
