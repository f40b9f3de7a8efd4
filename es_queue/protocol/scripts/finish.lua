-- Close the open publications, write the last state, let every key of the run expire.
-- ARGV: token seconds checkpoint {progress} {refused} {lasting keys}
local seconds, checkpoint, progress, refused, lasting = argument(), argument(), list(), list(), list()
if checkpoint ~= '' then redis.call('SET', run .. 'checkpoint', checkpoint) end
redis.call('HSET', run .. 'progress', unpack(progress))
if #refused > 0 then redis.call('HSET', run .. 'refused', unpack(refused)) end
close_all_but({})
redis.call('HDEL', run .. 'progress', 'publication', 'open', 'give_way')
for _, worker in ipairs(workers()) do redis.call('UNLINK', run .. 'claims:' .. worker) end
redis.call('UNLINK', run .. 'todo', run .. 'workers', run .. 'master', run .. 'bell')
for _, key in ipairs(lasting) do redis.call('EXPIRE', key, seconds) end
return 1
