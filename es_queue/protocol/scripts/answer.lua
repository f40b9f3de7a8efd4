-- Append a block's results and moments, and remove its claim, at once. A worker's script: it is not fenced.
-- Returns {1, what the worker holds}; {0, ...} when the publication has closed; {-1} when this part is full: use the next.
-- KEYS: results:<p>:<n> moments:<p>:<n> claims:<worker> bell results:<p>:0 results:<p>:<n+1>
-- ARGV: block results moments most seconds
local most = tonumber(ARGV[4])
local open = redis.call('EXISTS', KEYS[5]) == 1
if open then
  if redis.call('EXISTS', KEYS[6]) == 1 then return { -1 } end
  local results, moments = redis.call('STRLEN', KEYS[1]), redis.call('STRLEN', KEYS[2])
  if results + moments > 0 and (results + #ARGV[2] > most or moments + #ARGV[3] > most) then return { -1 } end
  redis.call('APPEND', KEYS[1], ARGV[2])
  redis.call('APPEND', KEYS[2], ARGV[3])
  if KEYS[1] ~= KEYS[5] then
    redis.call('EXPIRE', KEYS[1], ARGV[5])
    redis.call('EXPIRE', KEYS[2], ARGV[5])
  end
  if redis.call('LLEN', KEYS[4]) == 0 then
    redis.call('RPUSH', KEYS[4], 1)
    redis.call('EXPIRE', KEYS[4], ARGV[5])
  end
end
redis.call('LREM', KEYS[3], 0, ARGV[1])
return { open and 1 or 0, redis.call('LRANGE', KEYS[3], 0, 99) }
