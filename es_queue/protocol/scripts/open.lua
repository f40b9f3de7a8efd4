-- Open a publication and close the one that is stored and older ones, but those to keep. Sent again it does nothing.
-- Returns {the publication that was stored, whether this one is open now: not when its parameters are gone}.
-- Todo is emptied: what a publication owes is issued by the next look at it.
-- KEYS: epoch progress task iteration todo config history checkpoint runs bell results:<p>:0 moments:<p>:0 parameters:<p>
-- ARGV: token publication generation task config checkpoint prefix run now seconds {progress} {history} {lasting} {keep}
local publication, generation, task, config = argument(), argument(), argument(), argument()
local checkpoint, prefix, run, now, seconds = argument(), argument(), argument(), argument(), argument()
local progress, history, lasting, kept = list(), list(), list(), list()

local stored = redis.call('HGET', KEYS[2], 'publication')
if stored == publication and redis.call('EXISTS', KEYS[3], KEYS[11], KEYS[12], KEYS[13]) == 4 then
  redis.call('EXPIRE', KEYS[13], seconds) -- parameters that were staged again would go after a while
  return { stored, 1 }
end
if redis.call('EXISTS', KEYS[13]) == 0 then return { stored, 0 } end

redis.call('SET', KEYS[3], task)
redis.call('SET', KEYS[4], generation)
redis.call('SET', KEYS[6], config)
if checkpoint ~= '' then redis.call('SET', KEYS[8], checkpoint) end
local keep = { [publication] = true }
for _, name in ipairs(kept) do keep[name] = true end
close_older(KEYS[2], prefix, keep)
if stored and not keep[stored] then close(prefix, stored) end -- before its name is forgotten
progress[#progress + 1] = 'publication'
progress[#progress + 1] = publication
redis.call('HSET', KEYS[2], unpack(progress))
if #kept > 0 then redis.call('HSET', KEYS[2], 'open', table.concat(kept, ' ')) else redis.call('HDEL', KEYS[2], 'open') end
if #history > 0 and stored ~= publication then redis.call('XADD', KEYS[7], 'MAXLEN', '~', 10000, '*', unpack(history)) end
redis.call('ZADD', KEYS[9], 'NX', now, run)
redis.call('UNLINK', KEYS[5])
redis.call('SET', KEYS[11], '', 'EX', seconds)
redis.call('SET', KEYS[12], '', 'EX', seconds)
redis.call('EXPIRE', KEYS[13], seconds)
for _, key in ipairs(lasting) do redis.call('EXPIRE', key, seconds) end
return { stored, 1 }
